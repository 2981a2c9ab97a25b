//go:build !linux

package bench

import "os"

// flush waits until the disk has the file.
func flush(f *os.File) error { return f.Sync() }
