package run

import "fmt"

// DecodeBrief reads of a stored record what lists show and filter by: all but Tail and Detail, which stay nil. That is
// the smaller part, and it is not checked for coherence: nothing is decided over such a record. Its values are parts of
// body. Bytes that make no record give an error wrapping ErrCorrupt.
func DecodeBrief(body []byte, into *Record) error {
	if len(body) > MaxRecord {
		return fmt.Errorf("decode run: %d bytes: %w", len(body), ErrCorrupt)
	}
	in := reader{b: body}
	in.open()
	*into = Record{Spec: Spec{CreatedAt: in.base}}
	for n := in.tag(); n != 0 && (n < tagTail || n > tagDetail); n = in.tag() {
		if !in.recordField(into, n) {
			in.fail(errUnknown)
		}
	}
	switch {
	case in.err != nil:
		return fmt.Errorf("decode run %q: %w: %w", Clip(into.ID, MaxName), ErrCorrupt, in.err)
	case into.ID == "" || !into.State.Valid():
		return fmt.Errorf("decode run %q in state %q: %w", Clip(into.ID, MaxName), Clip(string(into.State), 64), ErrCorrupt)
	}
	return nil
}
