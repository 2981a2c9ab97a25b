package version

import (
	"runtime"
	"testing"
)

func TestGetPrefersTheLinkersVersion(t *testing.T) {
	defer func(old string) { version = old }(version)

	version = "v1.2.3"
	if got := Get(); got.Version != "v1.2.3" || got.Go != runtime.Version() || got.Platform == "" {
		t.Errorf("Get() = %+v, want version v1.2.3 and this toolchain", got)
	}
	version = ""
	if got := Get().Version; got == "" {
		t.Error("without the linker's word Get().Version is empty")
	}
}
