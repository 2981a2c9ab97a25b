package sqlite

import (
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/errand-run/errand/shared/store"
)

// schemaVersion is kept in the file; a file with a higher one is of a newer program. Version 1 was never released.
const schemaVersion = 2

// applicationID marks the file as a store of ours: "Errd".
const applicationID = 0x45727264

// The documents are one table in order of creation, so that the runs of the moment share pages; the body comes last,
// so that the keys are read without it. A key that is absent is NULL: the partial indexes then leave it out, and a run
// costs no more than the indexes it stands in.
//
// Indexes end in the id: (created, id) is the order of a listing, and equal instants are common. A run that is its own
// root stands in no index of roots: it is found by its id, and most runs are such; the entry would be as scattered as
// the ids are and cost a page of the log for each.
const schema = `
CREATE TABLE doc (
	seq     INTEGER PRIMARY KEY,
	kind    INTEGER NOT NULL,
	id      TEXT NOT NULL,
	version INTEGER NOT NULL,
	owner   TEXT,
	tag     TEXT,
	tenant  TEXT, -- not NULL for every run, and for nothing else
	agent   TEXT,
	parent  TEXT,
	root    TEXT,
	created INTEGER,
	worker  TEXT,
	attempt INTEGER,
	shard   INTEGER,
	wake    INTEGER,
	body    BLOB
);
CREATE UNIQUE INDEX doc_id ON doc (kind, id);
CREATE INDEX doc_owner ON doc (owner, kind, id) WHERE owner IS NOT NULL;
CREATE INDEX doc_tag ON doc (kind, tag, id) WHERE tag IS NOT NULL;
CREATE INDEX run_created ON doc (created, id) WHERE tenant IS NOT NULL;
CREATE INDEX run_tenant ON doc (tenant, created, id) WHERE tenant IS NOT NULL;
CREATE INDEX run_agent ON doc (tenant, agent, created, id) WHERE tenant IS NOT NULL;
CREATE INDEX run_parent ON doc (parent, created, id) WHERE parent IS NOT NULL;
CREATE INDEX run_root ON doc (root, created, id) WHERE root <> id;
CREATE INDEX run_worker ON doc (worker, id) WHERE worker IS NOT NULL;
CREATE INDEX run_due ON doc (shard, wake, id) WHERE wake IS NOT NULL;
`

// prepareFile gives a new file its shape, and leaves one that has it.
func prepareFile(c *conn) error {
	version, err := c.number("PRAGMA user_version")
	if err != nil {
		return err
	}
	if version == 0 {
		// The first two take effect while the file is empty only.
		for _, sql := range []string{
			fmt.Sprintf("PRAGMA page_size=%d", pageSize),
			"PRAGMA auto_vacuum=INCREMENTAL",
			"PRAGMA journal_mode=WAL",
			fmt.Sprintf("BEGIN IMMEDIATE; %s PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT", schema, applicationID, schemaVersion),
		} {
			if err := c.run(sql); err != nil {
				return fmt.Errorf("create the schema: %w", err)
			}
		}
	}
	// The log mode is a property of the file, which a tool may have changed.
	var mode string
	err = c.query("PRAGMA journal_mode=WAL", nil, func(v []driver.Value) error {
		mode = text(v[0])
		return nil
	})
	if err == nil && mode != "wal" {
		err = errors.New("the file system allows no write-ahead log (shared memory): put the store on a local disk")
	}
	if err != nil {
		return err
	}
	// A log that a crash left is folded in, so that its size is known from here on.
	return c.run("PRAGMA wal_checkpoint(TRUNCATE)")
}

// inspectSchema refuses a database of someone else, or of a newer program.
func inspectSchema(c *conn) error {
	id, err := c.number("PRAGMA application_id")
	if err != nil {
		return err
	}
	version, err := c.number("PRAGMA user_version")
	if err != nil {
		return err
	}
	tables, err := c.number("SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	switch {
	case id == 0 && version == 0 && tables == 0:
		return nil // an empty database: a creation that did not finish
	case id != applicationID:
		return errors.New("the file is a database of another program: choose another file")
	case version > schemaVersion:
		return fmt.Errorf("the file has schema version %d, this program knows %d: use the newer program", version, schemaVersion)
	case version == 1:
		return errors.New("the file has schema version 1, of a program before the first release, which this one does not read: begin with a new file")
	case version != schemaVersion:
		return fmt.Errorf("the file has schema version %d, which no program wrote: restore it from a copy", version)
	}
	return nil
}

// columns are those of a document, as scanDoc reads them.
const columns = "kind,id,version,owner,tag,tenant,agent,parent,root,created,worker,attempt,shard,wake,body"

func scanDoc(v []driver.Value) store.Doc {
	d := store.Doc{Kind: store.Kind(integer(v[0])), ID: text(v[1]), Version: integer(v[2]), Owner: text(v[3]), Tag: text(v[4])}
	if v[5] != nil {
		d.Index = &store.Index{
			Tenant: text(v[5]), Agent: text(v[6]), Parent: text(v[7]), Root: text(v[8]), CreatedAt: integer(v[9]),
			Worker: text(v[10]), Attempt: integer(v[11]), Part: store.Part(integer(v[12])), WakeAt: integer(v[13]),
		}
	}
	d.Body, _ = v[14].([]byte)
	return d
}
