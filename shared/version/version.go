// Package version says which build of Errand this is. Standard library only.
package version

import (
	"runtime"
	"runtime/debug"
)

// Set by the linker: -ldflags "-X github.com/errand-run/errand/shared/version.version=v1.2.3".
var version string

// Info describes the build.
type Info struct {
	// Version is the release, or the module's version with its revision, or "devel".
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"` // of the revision
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Get reads what the linker and the toolchain recorded.
func Get() Info {
	info := Info{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range build.Settings {
			switch s.Key {
			case "vcs.revision":
				info.Revision = s.Value
			case "vcs.time":
				info.Time = s.Value
			case "vcs.modified":
				info.Modified = s.Value == "true"
			}
		}
		if info.Version == "" && build.Main.Version != "(devel)" {
			info.Version = build.Main.Version
		}
	}
	if info.Version == "" {
		info.Version = "devel"
	}
	return info
}
