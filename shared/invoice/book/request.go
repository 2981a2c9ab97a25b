package book

import "fmt"

// A Request is one turn with a book: exactly one of its fields is set.
type Request struct {
	Post    *Posting `json:"post,omitempty"`    // enter an invoice
	Balance string   `json:"balance,omitempty"` // add up a currency
	Entry   string   `json:"entry,omitempty"`   // look up an invoice by its id
}

// A Reply answers a Request; it has the fields that fit it.
type Reply struct {
	ID       string `json:"id,omitempty"`      // post, entry: of the invoice
	Entry    *Entry `json:"entry,omitempty"`   // post, entry: what the book holds under it; absent when nothing
	Changed  *bool  `json:"changed,omitempty"` // post: false when it was posted before
	Currency string `json:"currency,omitempty"`
	Balance  string `json:"balance,omitempty"` // as Book.Balance gives it
	Entries  int    `json:"entries"`           // balance: in this currency; otherwise of the whole book
}

// Do answers a request. An error wraps ErrInvalid, ErrConflict or ErrFull, and
// leaves the book as it was.
func (b *Book) Do(q Request) (Reply, error) {
	switch {
	case q.Post != nil && q.Balance == "" && q.Entry == "":
		changed, err := b.Post(*q.Post)
		if err != nil {
			return Reply{}, err
		}
		entry := b.Entries[q.Post.ID]
		return Reply{ID: q.Post.ID, Entry: &entry, Changed: &changed, Entries: len(b.Entries)}, nil
	case q.Balance != "" && q.Post == nil && q.Entry == "":
		sum, entries, err := b.Balance(q.Balance)
		if err != nil {
			return Reply{}, err
		}
		return Reply{Currency: q.Balance, Balance: sum, Entries: entries}, nil
	case q.Entry != "" && q.Post == nil && q.Balance == "":
		reply := Reply{ID: q.Entry, Entries: len(b.Entries)}
		if entry, ok := b.Entries[q.Entry]; ok {
			reply.Entry = &entry
		}
		return reply, nil
	}
	return Reply{}, fmt.Errorf("%w: want exactly one of post, balance and entry", ErrInvalid)
}
