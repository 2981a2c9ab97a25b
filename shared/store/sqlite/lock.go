//go:build unix

package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/shared/store"
)

// fileLock is the ownership of a store, held by an open file: the operating system gives it up with the process. It
// belongs to the file as opened, so it keeps a second opening by this very process out as well.
type fileLock struct{ file *os.File }

// lockFile takes the lock at path or fails with an error wrapping [store.ErrLocked] that names the holder.
func lockFile(path string) (*fileLock, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, explain(err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EINTR) {
			f.Close()
			continue
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: %s: stop it, or choose another file", store.ErrLocked, holder(f))
		}
		if err == nil {
			// The holder before removes the file as it leaves: a lock on a removed file keeps nobody out.
			var same bool
			if same, err = stillAt(f, path); err == nil && !same {
				f.Close()
				continue
			}
		}
		if err == nil {
			if err = f.Truncate(0); err == nil {
				_, err = f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
			}
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return &fileLock{f}, nil
	}
}

func stillAt(f *os.File, path string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, there), err
}

// holder names the process that wrote the lock, for people.
func holder(f *os.File) string {
	b, _ := io.ReadAll(io.LimitReader(f, 32))
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case err != nil:
		return "held by another process"
	case pid == os.Getpid():
		return fmt.Sprintf("held by this process (pid %d)", pid)
	}
	return fmt.Sprintf("held by pid %d", pid)
}

// release removes the lock's file before it gives the lock up, while nobody else can hold it.
func (l *fileLock) release() error {
	return errors.Join(os.Remove(l.file.Name()), l.file.Close())
}
