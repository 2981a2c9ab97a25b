package cli

import (
	"errors"
	"os"
	"path/filepath"
)

// Names of the folders that dev --twin makes among the temporary ones, and of the lock in each: who holds that uses it.
const (
	twinFolders  = "errand-twin-"
	twinLock     = "lock"
	maxLeftovers = 100 // that one start removes
)

// twinFolder makes a folder for the logs of a twin, and removes those that a dev which was killed has left: folders of
// this user alone, and whose lock nobody holds. release gives the folder up, and leaves it to the next start.
func twinFolder(parent string) (dir string, release func(), err error) {
	removeLeftovers(parent)
	if dir, err = os.MkdirTemp(parent, twinFolders); err != nil {
		return "", nil, err
	}
	// The lock has its name once it is held: until then nobody takes the folder for one that was left.
	fresh := filepath.Join(dir, twinLock+".new")
	release, err = holdFile(fresh, true)
	if err == nil {
		err = os.Rename(fresh, filepath.Join(dir, twinLock))
	}
	if err != nil {
		if release != nil {
			release()
		}
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, release, nil
}

// removeLeftovers is best effort: what cannot be removed stays.
func removeLeftovers(parent string) {
	left, err := filepath.Glob(filepath.Join(parent, twinFolders+"*"))
	if err != nil {
		return
	}
	for _, dir := range left[:min(len(left), maxLeftovers)] {
		if !isOwn(dir) {
			continue
		}
		release, err := holdFile(filepath.Join(dir, twinLock), false)
		if err != nil {
			continue // it is in use, or none of ours
		}
		_ = os.RemoveAll(dir)
		release()
	}
}
