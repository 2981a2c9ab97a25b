//go:build unix

package cli

import "golang.org/x/sys/unix"

// freeBytes is what the file system of a folder can still take from an ordinary user.
func freeBytes(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return uint64(s.Bavail) * uint64(s.Bsize), nil //nolint:unconvert // signed on some systems
}
