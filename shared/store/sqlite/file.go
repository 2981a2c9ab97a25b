package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// magic begins every SQLite database.
var magic = []byte("SQLite format 3\x00")

// realPath returns the absolute path of the store, with symbolic links followed; the file itself may not exist yet.
func realPath(path string) (string, error) {
	if path == "" {
		return "", errors.New("no path given")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, explain(err)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no folder %s: create it first", filepath.Dir(abs))
	}
	return filepath.Join(dir, filepath.Base(abs)), explain(err)
}

// explain adds what to do to an error of the file system.
func explain(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: let this user read and write the file and its folder", err)
	}
	return err
}

// inspect refuses a file that is not a store which this program can write, and changes nothing. A file that does not
// exist, or is empty, is made one: it is created here, for its owner alone, and its siblings follow its mode.
//
// The caller holds the store's lock: closing a descriptor of the file would drop the locks that SQLite holds on it.
func inspect(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return explain(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file: choose another path")
	}
	head := make([]byte, len(magic))
	switch n, err := io.ReadFull(f, head); {
	case n == 0 && errors.Is(err, io.EOF):
		return nil
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case !bytes.Equal(head, magic):
		return errors.New("the file is no database, and was left as it is: choose another file")
	}
	c, err := dial(path, readOnly)
	if err == nil {
		err = inspectSchema(c)
		if e := c.close(); err == nil {
			err = e
		}
	}
	return err
}
