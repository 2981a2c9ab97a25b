//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFoldersThatAKilledDevHasLeftGoAtTheNextStart(t *testing.T) {
	parent := t.TempDir()
	folder := func(name string, lock bool) string {
		t.Helper()
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if lock {
			if err := os.WriteFile(filepath.Join(dir, twinLock), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	left := folder(twinFolders+"left", true)
	young := folder(twinFolders+"young", false) // of a dev that begins just now
	other := folder("another", true)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, twinLock), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(parent, twinFolders+"link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	used, release, err := twinFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	second, releaseSecond, err := twinFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer releaseSecond()
	for path, there := range map[string]bool{left: false, young: true, other: true, outside: true, link: true, used: true, second: true} {
		if _, err := os.Lstat(path); (err == nil) != there {
			t.Errorf("%s is there: %v, want %v", filepath.Base(path), err == nil, there)
		}
	}
	release()
	_, releaseThird, err := twinFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer releaseThird()
	if _, err := os.Stat(used); err == nil {
		t.Error("the folder that was given up is still there")
	}
}
