package deploy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// Media types of OCI images.
const (
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
)

// nobody is the user of the real base image, which is not root.
const nobody = 65532

// document is JSON under its digest, as a registry keeps it.
type document struct {
	body   []byte
	digest string
}

func newDocument(t *testing.T, v any) document {
	t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(body)
	return document{body: body, digest: "sha256:" + hex.EncodeToString(sum[:])}
}

// serveBase is a registry on a loopback address with one image: nothing but a user that is not root. It stands in for
// the real base where there is no network. It returns the image's reference.
func serveBase(t *testing.T) string {
	t.Helper()
	config := newDocument(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"User": strconv.Itoa(nobody), "Env": []string{"PATH=/usr/bin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{}},
	})
	manifest := newDocument(t, map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "layers": []any{},
		"config": map[string]any{"mediaType": typeConfig, "digest": config.digest, "size": len(config.body)},
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/{$}", func(http.ResponseWriter, *http.Request) {})
	give := func(d document, mediaType string, names ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for _, name := range append(names, d.digest) {
				if r.PathValue("name") == name {
					w.Header().Set("Content-Type", mediaType)
					w.Header().Set("Docker-Content-Digest", d.digest)
					w.Header().Set("Content-Length", strconv.Itoa(len(d.body)))
					_, _ = w.Write(d.body)
					return
				}
			}
			http.NotFound(w, r)
		}
	}
	mux.Handle("GET /v2/base/manifests/{name}", give(manifest, typeManifest, "nonroot"))
	mux.Handle("GET /v2/base/blobs/{name}", give(config, "application/octet-stream"))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/base:nonroot"
}
