// Package server is the HTTP door of the control plane: the interface under /v1 with its OpenAPI description, the
// worker protocol, live streams, health, metrics, and a plain page of runs.
//
// Operations without a request body go through huma, which reads and checks their parameters. Those with a body, and
// those that wait or stream, are plain handlers over one strict decoder (scan.go). Both are doors (door.go): one table
// entry says who may pass, what comes in and what goes out, and the OpenAPI document is made of exactly these.
//
// Errors are problems (RFC 9457), located where they can be. Payloads and tokens reach neither logs nor errors.
//
// Layer 5: it imports control (through the interface Plane), api, manifest and below; chi and huma are used here alone.
package server
