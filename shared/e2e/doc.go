// Package e2e tests Errand from outside: the errand command serves in a process of its own, agents are processes that
// it starts or that connect to it, and the tests are clients that kill any of them.
//
// There is nothing here but tests. The test binary plays every part: see harness_test.go.
package e2e
