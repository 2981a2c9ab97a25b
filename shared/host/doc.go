// Package host executes attempts for workers that are no agents themselves: by a program over standard input and output,
// or by a service that is sent the attempt's document. It also brings the attempts that a bus carries to the workers of a
// pool.
//
// Slots, heartbeats, reports and the drain are those of agent.Host. Imports: agent, api, bus, identity, runtime and its
// drivers stdio, httpio and process.
package host
