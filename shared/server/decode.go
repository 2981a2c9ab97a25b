package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"reflect"
	"strings"

	"github.com/errand-run/errand/shared/api"
)

// readBody reads a request's whole body, at most limit bytes of it.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, problem(http.StatusUnsupportedMediaType, api.CodeUnsupported, "the body has Content-Encoding %q; send it as it is", clip(enc))
	}
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // the rest of the body is not worth reading
		return nil, tooLarge(limit)
	}
	var b bytes.Buffer
	if r.ContentLength > 0 {
		b.Grow(int(min(r.ContentLength, 64<<10)) + bytes.MinRead) // not what the client claims: what it sends
	}
	_, err := b.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		return b.Bytes(), nil
	}
	var large *http.MaxBytesError
	var network net.Error
	switch {
	case errors.As(err, &large):
		return nil, tooLarge(limit)
	case errors.As(err, &network) && network.Timeout():
		return nil, problem(http.StatusRequestTimeout, api.CodeInvalid, "the body did not arrive in time")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, invalid("the body ended before its announced length")
	}
	return nil, invalid("the body could not be read")
}

func tooLarge(limit int64) *api.Problem {
	return problem(http.StatusRequestEntityTooLarge, api.CodeTooLarge, "the body is larger than the limit of %d bytes (%s)", limit, size(limit))
}

func size(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// decode reads a JSON body into a T, strictly. An empty body is refused unless optional.
func decode[T any](w http.ResponseWriter, r *http.Request, limit int64, optional bool) (T, error) {
	var v T
	body, err := readBody(w, r, limit)
	if err != nil {
		return v, err
	}
	if len(body) == 0 && optional {
		return v, nil
	}
	if err := isJSON(r.Header.Get("Content-Type")); err != nil {
		return v, err
	}
	return v, unmarshal(body, &v)
}

// isJSON refuses a body that does not say that it is JSON: a page of another site can send only other types without
// being asked first.
func isJSON(contentType string) error {
	if contentType == "application/json" {
		return nil
	}
	media, params, err := mime.ParseMediaType(contentType)
	charset := params["charset"]
	switch {
	case err != nil || (media != "application/json" && !strings.HasSuffix(media, "+json")):
		return problem(http.StatusUnsupportedMediaType, api.CodeUnsupported, "the body has Content-Type %q; want application/json", clip(contentType))
	case charset != "" && !strings.EqualFold(charset, "utf-8"):
		return problem(http.StatusUnsupportedMediaType, api.CodeUnsupported, "the body has charset %q; want utf-8", clip(charset))
	}
	return nil
}

// unmarshal decodes one JSON document into v, a pointer. Every fault is located; none of the value is used then.
func unmarshal(body []byte, v any) error {
	faults, err := scan(body, shapeOf(reflect.TypeOf(v).Elem()))
	if err != nil {
		return located(invalid("the body is not the JSON that is wanted: %v", err), "body", err.Error())
	}
	if len(faults) > 0 {
		p := invalid("the body does not have the form that is wanted: %s: %s", faults[0].Location, faults[0].Message)
		p.Errors = faults
		return p
	}
	if err := json.Unmarshal(body, v); err != nil { // the scan has found all that it can find, but for what is new to it
		return located(invalid("the body has a wrong value: %v", err), "body", err.Error())
	}
	return nil
}
