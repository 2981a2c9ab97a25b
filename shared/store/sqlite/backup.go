package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/errand-run/errand/shared/store"
)

// Backup writes a copy of the store, of one moment and without free pages, to a new file at path while the store goes
// on. It is there whole, and on the disk, or not at all; an existing file is refused. It ends early with ctx, or with
// an error wrapping [store.ErrClosed] when the store is closed.
func (s *Store) Backup(ctx context.Context, path string) error {
	s.mu.Lock()
	select {
	case <-s.closing:
		s.mu.Unlock()
		return fmt.Errorf("back up to %s: %w", path, store.ErrClosed)
	default:
	}
	s.backups.Add(1)
	s.mu.Unlock()
	defer s.backups.Done()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-s.closing:
			cancel(store.ErrClosed)
		case <-stop:
		}
	}()
	if err := s.backup(ctx, path); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("back up store %s to %s: %w", s.path, path, err)
	}
	return nil
}

func (s *Store) backup(ctx context.Context, path string) (err error) {
	// 1. Claim the name, so that nothing that appears meanwhile is overwritten.
	claim, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return errors.New("the file exists: choose another name, or remove it")
	}
	if err != nil {
		return explain(err)
	}
	part := path + ".part"
	defer func() {
		claim.Close()
		if err != nil {
			err = errors.Join(err, os.Remove(path))
			_ = os.Remove(part)
		}
	}()
	// 2. Copy beside it. A part of a backup that was killed is in nobody's way.
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return explain(err)
	}
	defer f.Close()
	c, err := dial(s.path, readOnly)
	if err != nil {
		return err
	}
	defer func() { _ = c.close() }() // it has only read
	quoted := "'" + strings.ReplaceAll(part, "'", "''") + "'"
	if _, err := c.raw.(driver.ExecerContext).ExecContext(ctx, "VACUUM INTO "+quoted, nil); err != nil {
		return err
	}
	// 3. On the disk first, then under its name.
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
