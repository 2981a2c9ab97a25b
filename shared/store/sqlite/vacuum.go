package sqlite

import "fmt"

// What is removed leaves free pages, which the next documents take; so a file that is written and cleared at the same
// rate keeps its size, and giving pages back would only cost the next commits their growth. Where much more is free
// than will be wanted soon, the end of the file is given back: in bites, each a transaction of its own, and only while
// no commit waits.
const (
	keptPages   = 256 // free pages that are always kept: 1 MiB
	bitePages   = 64  // given back at once; a commit that comes meanwhile waits for one bite
	startShare  = 4   // it begins when more than one page in so many is free
	finishShare = 8   // and ends when no more than one in so many is
)

// wanted returns how many free pages of a file are to be given back. going reports that it has begun before.
func wanted(free, pages int64, going bool) int64 {
	if !going && free <= pages/startShare {
		return 0
	}
	// With each page that is given back the file is one shorter: kept is an eighth of what is left in the end.
	kept := max((pages-free)/(finishShare-1), keptPages)
	return max(free-kept, 0)
}

// shrink gives free pages at the end of the file back in one bite, and reports whether there is more to do at once.
func (w *writer) shrink() bool {
	if !w.freed || w.conn == nil {
		return false
	}
	w.freed = false
	free, err := w.conn.number("PRAGMA freelist_count")
	if err != nil || free <= keptPages {
		w.shrinking = false
		return false
	}
	pages, err := w.conn.number("PRAGMA page_count")
	if err != nil {
		return false
	}
	give := wanted(free, pages, w.shrinking)
	w.shrinking = give > bitePages
	if give == 0 {
		return false
	}
	if err := w.conn.run(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", min(give, bitePages))); err != nil {
		return false // a full disk, say; the next removal tries again
	}
	w.count(0)
	w.tendLog()
	w.freed = w.shrinking
	return w.freed
}
