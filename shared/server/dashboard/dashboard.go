// Package dashboard renders the pages that people look at: the fleet as it is, one run with its story, and the
// description of the interface. It turns wire types into HTML and knows nothing of where they come from.
//
// Pages are whole without JavaScript. With it, a page follows the stream that its main element names and fetches itself
// again after changes. Everything is served from the binary, under a policy that allows nothing inline and no other
// host; html/template escapes what agents and people wrote, and characters that hide or turn text are shown by their codes.
package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Policy is the Content-Security-Policy of the pages.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// Overview is the first page: counts, agents, targets and the newest runs.
type Overview struct {
	Now     time.Time
	Version api.Version
	Stats   api.Stats
	Agents  []api.Object
	Targets []api.Object
	Runs    []api.Run
	Filter  Filter
	Next    string // token of older runs
	// Paged: these are not the newest runs, so the page does not follow.
	Paged  bool
	States []string // every state, to choose from
}

// Filter selects the runs of the first page; "" for any.
type Filter struct{ State, Agent, Workflow, Parent string }

// Run is the page of one run.
type Run struct {
	Now           time.Time
	Version       api.Version
	Run           api.Run
	Input, Output Value // cut where long
	Attempts      []api.Attempt
	Events        []api.Event
	MoreEvents    bool
	Receipts      []api.Receipt
	Logs          []api.LogLine
	MoreLogs      bool
	Children      []api.Run // the newest
	MoreChildren  bool
	Gates         []api.Gate
	Story         []string
	Candidates    []api.Candidate
}

// Docs is the description of the interface.
type Docs struct {
	Version     api.Version
	Title       string
	Description string
	Groups      []DocGroup
	Schemas     []DocSchema
}

// DocGroup is a group of operations.
type DocGroup struct {
	Name, Description string
	Operations        []DocOperation
}

// DocOperation is one operation.
type DocOperation struct {
	ID, Method, Path, Summary string
	Params                    []DocField
	Body                      string // name of the schema, or a media type
	BodySchema                bool   // Body names a schema of the page
	Answers                   []DocAnswer
}

// DocAnswer is one answer of an operation.
type DocAnswer struct {
	Status, Schema string
	Media          []string
}

// DocSchema is the form of a JSON object.
type DocSchema struct {
	Name   string
	Fields []DocField
}

// DocField is a field of an object, or a parameter with In set.
type DocField struct {
	Name, Type, In, Description string
	Ref                         string // schema that Type stands for
	Required                    bool
}

// Failure is the page of a request that failed.
type Failure struct {
	Version api.Version
	Problem *api.Problem
}

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed static
var staticFiles embed.FS

var pages = func() map[string]*template.Template {
	all := make(map[string]*template.Template)
	for _, name := range []string{"overview", "run", "gates", "gate", "decided", "receipts", "docs", "failure"} {
		all[name] = template.Must(template.New(name).Funcs(functions).ParseFS(templateFiles, "templates/layout.html", "templates/"+name+".html"))
	}
	return all
}()

// Render returns a page: of an Overview, a Run, Gates, a Gate, a Decided, Receipts, a Docs or a Failure. A page is rendered as a whole or not at all.
func Render(data any) ([]byte, error) {
	// Pointers, so that templates reach methods of pointers.
	var name string
	switch d := data.(type) {
	case Overview:
		name, data = "overview", &d
	case Run:
		name, data = "run", &d
	case Gates:
		name, data = "gates", &d
	case Gate:
		name, data = "gate", &d
	case Decided:
		name, data = "decided", &d
	case Receipts:
		name, data = "receipts", &d
	case Docs:
		name, data = "docs", &d
	case Failure:
		name, data = "failure", &d
	default:
		return nil, fmt.Errorf("dashboard: no page for %T", data)
	}
	var b bytes.Buffer
	if err := pages[name].ExecuteTemplate(&b, "layout", data); err != nil {
		return nil, fmt.Errorf("dashboard: render %s: %w", name, err)
	}
	return visible(b.Bytes()), nil
}

// asset is a static file with its version.
type asset struct {
	body      []byte
	etag      string
	mediaType string
}

var mediaTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

var assets = func() map[string]asset {
	all := make(map[string]asset)
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := staticFiles.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		all[path.Base(name)] = asset{body, `"` + hex.EncodeToString(sum[:8]) + `"`, mediaTypes[path.Ext(name)]}
		return nil
	})
	if err != nil {
		panic("dashboard: read the embedded files: " + err.Error())
	}
	return all
}()

// ServeStatic answers with a static file by its name, and reports whether there is one.
func ServeStatic(w http.ResponseWriter, r *http.Request, name string) bool {
	a, ok := assets[name]
	if !ok {
		return false
	}
	h := w.Header()
	h.Set("ETag", a.etag)
	h.Set("Cache-Control", "no-cache") // asked for again each time, which costs a 304
	if r.Header.Get("If-None-Match") == a.etag {
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	h.Set("Content-Type", a.mediaType)
	_, _ = w.Write(a.body)
	return true
}
