// Package forecast plays what would come of a fleet: arrivals, one after the other, in simulated time, decided by the
// packages that decide in the product. It reports who waited, for how long and what for, what was turned away, what it
// cost and how many workers it took; and it says why one fleet made a tenant wait and another did not.
//
// Queue, admission, placement and retry are those of the control plane, driven in the order of its passes. What is
// modelled is the rest: a placed run starts at once, an attempt takes what its arrival says, and a process that is told
// to stop stops. One goroutine and one seed: the same input gives the same result, byte for byte.
//
// Memory grows with the runs that wait or run at a time, with tenants and agents, and not with the runs that finished.
//
// The package imports no context, clock or I/O.
package forecast
