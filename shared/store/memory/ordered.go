package memory

import (
	"iter"
	"slices"
	"sort"
)

// chunkSize bounds what an insertion moves. Full chunks split in half.
const chunkSize = 256

// ordered is a set of keys in byte order, each with the document found under it: sorted chunks, none of them empty.
type ordered struct {
	chunks [][]item
}

type item struct {
	key string
	*entry
}

// seek returns the position of the first item whose key is not below key; (len(chunks), 0) when there is none.
func (o *ordered) seek(key string) (chunk, at int) {
	chunk = sort.Search(len(o.chunks), func(c int) bool { return o.chunks[c][len(o.chunks[c])-1].key >= key })
	if chunk == len(o.chunks) {
		return chunk, 0
	}
	items := o.chunks[chunk]
	return chunk, sort.Search(len(items), func(i int) bool { return items[i].key >= key })
}

// insert adds a key that is not in the set.
func (o *ordered) insert(key string, e *entry) {
	c, i := o.seek(key)
	if c == len(o.chunks) {
		if c == 0 {
			o.chunks = [][]item{{{key, e}}}
			return
		}
		c--
		i = len(o.chunks[c])
	}
	items := slices.Insert(o.chunks[c], i, item{key, e})
	if len(items) > chunkSize {
		half := len(items) / 2
		o.chunks = slices.Insert(o.chunks, c+1, slices.Clone(items[half:]))
		clear(items[half:])
		items = items[:half]
	}
	o.chunks[c] = items
}

// remove takes out a key that is in the set.
func (o *ordered) remove(key string) {
	c, i := o.seek(key)
	o.chunks[c] = slices.Delete(o.chunks[c], i, i+1)
	if len(o.chunks[c]) == 0 {
		o.chunks = slices.Delete(o.chunks, c, c+1)
	}
}

// rising yields the entries with lo <= key < hi, in order. The set must not change meanwhile.
func (o *ordered) rising(lo, hi string) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		c, i := o.seek(lo)
		for ; c < len(o.chunks); c, i = c+1, 0 {
			for _, it := range o.chunks[c][i:] {
				if it.key >= hi || !yield(it.entry) {
					return
				}
			}
		}
	}
}

// falling yields the entries with lo <= key < hi, last first. The set must not change meanwhile.
func (o *ordered) falling(lo, hi string) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		c, i := o.seek(hi)
		for {
			for i--; i >= 0; i-- {
				if it := o.chunks[c][i]; it.key < lo || !yield(it.entry) {
					return
				}
			}
			if c--; c < 0 {
				return
			}
			i = len(o.chunks[c])
		}
	}
}
