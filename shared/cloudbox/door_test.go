package cloudbox

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestTheDoor(t *testing.T) {
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	}))
	defer behind.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := newBalancer(l, slog.New(slog.DiscardHandler))
	defer b.close()
	b.add(behind.Listener.Addr().String())
	door := httptest.NewServer(b.door("secret"))
	defer door.Close()
	for sentence, c := range map[string]struct {
		url    string
		host   string
		header http.Header
		status int
		body   string
	}{
		"a request without a token comes in as the operator":       {url: door.URL, status: 200, body: "Bearer secret"},
		"a token of one's own is kept":                             {url: door.URL, header: http.Header{"Authorization": {"Bearer mine"}}, status: 200, body: "Bearer mine"},
		"a page of this machine comes in":                          {url: door.URL, header: http.Header{"Origin": {"http://localhost:3000"}}, status: 200, body: "Bearer secret"},
		"a page of another host does not":                          {url: door.URL, header: http.Header{"Origin": {"https://evil.example"}}, status: 403},
		"a name that was made to resolve to this machine does not": {url: door.URL, host: "evil.example", status: 403},
		"the address of workloads lets in nobody without a token":  {url: "http://" + b.addr(), status: 200, body: ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if c.header != nil {
				req.Header = c.header
			}
			req.Host = c.host
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.status || (c.status == 200 && string(body) != c.body) {
				t.Errorf("status %d, %q; want %d, %q", resp.StatusCode, body, c.status, c.body)
			}
		})
	}
}
