//go:build !linux

package bench

import "os"

// flush waits until the disk has the file.
func flush(f *os.File) error { return f.Sync() }

// resident is the memory of this process that is in RAM; 0, for it is not known here.
func resident() int64 { return 0 }
