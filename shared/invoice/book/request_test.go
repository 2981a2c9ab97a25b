package book_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/errand-run/errand/shared/invoice/book"
)

func TestEachRequestGetsItsReply(t *testing.T) {
	const entry = `{"currency":"EUR","amount":"12.5","vendor":"Ost GmbH"}`
	for name, c := range map[string]struct {
		request    string
		want       string // reply
		wantChange bool
		wantErr    error
	}{
		"a new invoice is entered": {`{"post":{"id":"B","currency":"EUR","amount":"-2"}}`,
			`{"id":"B","entry":{"currency":"EUR","amount":"-2"},"changed":true,"entries":2}`, true, nil},
		"an invoice that is there is not entered again": {`{"post":{"id":"A","currency":"EUR","amount":"12.50"}}`,
			`{"id":"A","entry":` + entry + `,"changed":false,"entries":1}`, false, nil},
		"another amount is a conflict": {`{"post":{"id":"A","currency":"EUR","amount":"12.51"}}`, "", false, book.ErrConflict},
		"a balance is added up":        {`{"balance":"EUR"}`, `{"currency":"EUR","balance":"12.50","entries":1}`, false, nil},
		"an unused currency is empty":  {`{"balance":"SEK"}`, `{"currency":"SEK","balance":"0.00","entries":0}`, false, nil},
		"an entry is looked up":        {`{"entry":"A"}`, `{"id":"A","entry":` + entry + `,"entries":1}`, false, nil},
		"an unknown entry is absent":   {`{"entry":"Z"}`, `{"id":"Z","entries":1}`, false, nil},
		"no question is refused":       {`{}`, "", false, book.ErrInvalid},
		"two questions are refused":    {`{"balance":"EUR","entry":"A"}`, "", false, book.ErrInvalid},
		"a posting with a question is": {`{"post":{"id":"B","currency":"EUR","amount":"1"},"balance":"EUR"}`, "", false, book.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			var b book.Book
			if err := json.Unmarshal([]byte(`{"entries":{"A":`+entry+`}}`), &b); err != nil {
				t.Fatal(err)
			}
			before := encode(t, b)
			var request book.Request
			if err := json.Unmarshal([]byte(c.request), &request); err != nil {
				t.Fatal(err)
			}
			reply, err := b.Do(request)
			if !errors.Is(err, c.wantErr) {
				t.Fatalf("error %v; want %v", err, c.wantErr)
			}
			if got, _ := json.Marshal(reply); err == nil && string(got) != c.want {
				t.Errorf("reply %s; want %s", got, c.want)
			}
			if after := encode(t, b); (before != after) != c.wantChange {
				t.Errorf("the book was %s and is %s; want a change: %t", before, after, c.wantChange)
			}
		})
	}
}
