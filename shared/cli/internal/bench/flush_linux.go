package bench

import (
	"os"

	"golang.org/x/sys/unix"
)

// flush waits until the disk has the file's data, as the store does.
func flush(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
