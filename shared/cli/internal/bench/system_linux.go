package bench

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// flush waits until the disk has the file's data, as the store does.
func flush(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// resident is the memory of this process that is in RAM, in bytes; 0 where the system does not say.
func resident() int64 {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(statm)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
