//go:build unix

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// isOwn reports whether a path is a folder of this user's, and no link to one.
func isOwn(path string) bool {
	var s unix.Stat_t
	return unix.Lstat(path, &s) == nil && s.Mode&unix.S_IFMT == unix.S_IFDIR && int(s.Uid) == os.Getuid()
}

// holdFile takes the lock on a file, which the system gives up with the process, or fails at once.
func holdFile(path string, create bool) (release func(), err error) {
	flags := os.O_RDWR | unix.O_NOFOLLOW
	if create {
		flags |= os.O_CREATE | os.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
