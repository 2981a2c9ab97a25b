package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"

	sqlite "modernc.org/sqlite"
)

// conn is one connection with its prepared statements. It speaks to the driver directly: a pool of connections and
// the conversion of arguments by database/sql cost a fifth of a small commit, and every connection here has one user
// at a time. It is not safe for concurrent use.
type conn struct {
	raw   driver.Conn
	stmts map[string]*stmt
}

type stmt struct {
	driver.Stmt
	exec  driver.StmtExecContext
	query driver.StmtQueryContext
}

// fdatasync waits for a commit's bytes without the file's time stamps; a journaling file system writes those apart.
// Where a platform has no such call, fsync stays.
var fdatasync = sync.OnceFunc(func() { _, _ = sqlite.Fdatasync(true) })

// mode is how a connection opens its file.
type mode string

const (
	readWrite mode = "rw"
	readOnly  mode = "ro"
	create    mode = "rwc"
)

// dial opens a connection and runs statements that set it up.
func dial(path string, m mode, setup ...string) (*conn, error) {
	fdatasync()
	// In URI form every character of a path is a plain one.
	u := url.URL{Scheme: "file", Path: path, RawQuery: "mode=" + string(m)}
	raw, err := (&sqlite.Driver{}).Open(u.String())
	if err != nil {
		return nil, err
	}
	c := &conn{raw: raw, stmts: map[string]*stmt{}}
	for _, sql := range setup {
		if err := c.run(sql); err != nil {
			_ = c.close()
			return nil, fmt.Errorf("%s: %w", sql, err)
		}
	}
	return c, nil
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.raw.Close())...)
}

// prepare returns the statement of sql, kept for the next time.
func (c *conn) prepare(sql string) (*stmt, error) {
	if s := c.stmts[sql]; s != nil {
		return s, nil
	}
	p, err := c.raw.(driver.ConnPrepareContext).PrepareContext(context.Background(), sql)
	if err != nil {
		return nil, err
	}
	s := &stmt{Stmt: p, exec: p.(driver.StmtExecContext), query: p.(driver.StmtQueryContext)}
	c.stmts[sql] = s
	return s, nil
}

// args collects the arguments of a statement, in order.
type args []driver.NamedValue

func (a args) value(v driver.Value) args {
	return append(a, driver.NamedValue{Ordinal: len(a) + 1, Value: v})
}

func (a args) int(v int64) args   { return a.value(v) }
func (a args) text(s string) args { return a.value(s) }

// key adds a string that is NULL when empty, which keeps it out of its partial index.
func (a args) key(s string) args {
	if s == "" {
		return a.value(nil)
	}
	return a.value(s)
}

func (a args) blob(b []byte) args { return a.value(b) }

// run executes a statement without arguments, once.
func (c *conn) run(sql string) error {
	_, err := c.raw.(driver.ExecerContext).ExecContext(context.Background(), sql, nil)
	return err
}

// exec executes a prepared statement.
func (c *conn) exec(sql string, a args) (driver.Result, error) {
	s, err := c.prepare(sql)
	if err != nil {
		return nil, err
	}
	return s.exec.ExecContext(context.Background(), a)
}

// query calls row for each row of a prepared statement, with values that row may keep, in a slice that it may not.
func (c *conn) query(sql string, a args, row func(v []driver.Value) error) (err error) {
	s, err := c.prepare(sql)
	if err != nil {
		return err
	}
	// Without a context that can end: watching one takes a goroutine per statement, and every read is a bounded page.
	rows, err := s.query.QueryContext(context.Background(), a)
	if err != nil {
		return err
	}
	defer func() {
		if e := rows.Close(); err == nil {
			err = e
		}
	}()
	v := make([]driver.Value, len(rows.Columns()))
	for {
		switch err := rows.Next(v); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := row(v); err != nil {
			return err
		}
	}
}

// number returns the one integer that a statement yields; 0 when it yields none.
func (c *conn) number(sql string) (n int64, err error) {
	err = c.query(sql, nil, func(v []driver.Value) error {
		n = integer(v[0])
		return nil
	})
	return n, err
}

// pagesWritten returns the pages that the connection wrote to the log since it was asked last.
func (c *conn) pagesWritten() int {
	n, _, err := c.raw.(sqlite.DBStatus).Status(sqlite.DBStatusCacheWrite, true)
	if err != nil {
		return 0
	}
	return n
}

func integer(v driver.Value) int64 {
	n, _ := v.(int64)
	return n
}

func text(v driver.Value) string {
	s, _ := v.(string)
	return s
}
