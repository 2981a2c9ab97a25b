package placement

// block is how many neighbouring nodes share an upper bound of their scores: the bits of a word.
const block = 64

// blocks is how many words hold n bits.
func blocks(n int) int { return (n + block - 1) / block }

// bitset is a set of nodes by index. Bits beyond the last node are 0.
type bitset []uint64

// empty returns a set for n nodes without members, of s's memory if it is enough.
func (s bitset) empty(n int) bitset {
	s = resize(s, blocks(n))
	clear(s)
	return s
}

func (s bitset) has(i int) bool { return s[i/block]>>(i%block)&1 == 1 }

func (s bitset) set(i int, member bool) {
	bit := uint64(1) << (i % block)
	s[i/block] &^= bit
	if member {
		s[i/block] |= bit
	}
}

// insert makes room for a node at i, of n nodes before.
func (s bitset) insert(i, n int, member bool) bitset {
	if blocks(n+1) > len(s) {
		s = append(s, 0)
	}
	for b := len(s) - 1; b > i/block; b-- {
		s[b] = s[b]<<1 | s[b-1]>>(block-1)
	}
	b := i / block
	low := uint64(1)<<(i%block) - 1
	s[b] = s[b]&low | s[b]&^low<<1
	s.set(i, member)
	return s
}

// remove closes the gap of the node at i, of n nodes before.
func (s bitset) remove(i, n int) bitset {
	b := i / block
	low := uint64(1)<<(i%block) - 1
	s[b] = s[b]&low | s[b]>>1&^low
	for ; b+1 < len(s); b++ {
		s[b] |= s[b+1] << (block - 1)
		s[b+1] >>= 1
	}
	return s[:blocks(n-1)]
}

// resize returns a slice of length n, of list's memory if it is enough. Its elements are undefined.
func resize[S ~[]T, T any](list S, n int) S {
	if cap(list) >= n {
		return list[:n]
	}
	return make(S, n, n+n/8)
}
