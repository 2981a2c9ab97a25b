package queue

// member is what a heap holds: it knows who comes first, and where in the heap it is.
type member[T any] interface {
	before(T) bool
	place() *int32 // index in the heap plus one; 0 when in none
}

// heap is a binary heap whose members can be moved and removed wherever they are.
type heap[T member[T]] []T

func (h heap[T]) holds(x T) bool { return *x.place() != 0 }

func (h *heap[T]) push(x T) {
	*h = append(*h, x)
	h.up(len(*h)-1, x)
}

// fix restores the order after x alone changed.
func (h heap[T]) fix(x T) {
	i := int(*x.place()) - 1
	if !h.down(i, x) {
		h.up(i, x)
	}
}

func (h *heap[T]) remove(x T) {
	i, last := int(*x.place())-1, len(*h)-1
	*x.place() = 0
	moved := (*h)[last]
	var none T
	(*h)[last] = none
	*h = (*h)[:last]
	if i != last {
		*moved.place() = int32(i + 1)
		(*h)[i] = moved
		h.fix(moved)
	}
	if cap(*h) > 64 && last < cap(*h)/4 {
		*h = append(make(heap[T], 0, cap(*h)/2), *h...)
	}
}

// up moves x from the hole i towards the top.
func (h heap[T]) up(i int, x T) {
	for i > 0 {
		parent := (i - 1) / 2
		if !x.before(h[parent]) {
			break
		}
		h[i] = h[parent]
		*h[i].place() = int32(i + 1)
		i = parent
	}
	h[i] = x
	*x.place() = int32(i + 1)
}

// down moves x from the hole i towards the bottom and reports whether it moved.
func (h heap[T]) down(i int, x T) bool {
	start := i
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(x) {
			break
		}
		h[i] = h[child]
		*h[i].place() = int32(i + 1)
		i = child
	}
	h[i] = x
	*x.place() = int32(i + 1)
	return i != start
}
