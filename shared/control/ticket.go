package control

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// ErrTicket is wrapped for every ticket that does not allow the claim it is shown for.
var ErrTicket = errors.New("ticket is not valid")

// errTicketOver is of a ticket that was good once.
var errTicketOver = fmt.Errorf("%w: it has expired", ErrTicket)

// Of a ticket, in bytes: when it expires, and a MAC cut to 128 bits, which is what a guess has to hit.
const (
	ticketExpiry = 8
	ticketMAC    = 16
)

// ticketPurpose keeps the MACs of tickets apart from those of tokens, whose input begins with "eyJ".
var ticketPurpose = []byte("ticket\x00")

// Ticket returns the right to claim an attempt until the instant, cut to seconds: 32 characters of base64url that fit
// into a message or an environment. That it is used once is for the run's state to see to.
func (s *signer) Ticket(attemptID string, expires time.Time) string {
	var raw [ticketExpiry + ticketMAC]byte
	binary.BigEndian.PutUint64(raw[:ticketExpiry], uint64(expires.Unix()))
	sum := s.keys.at(s.clock()).keys[0].mac(ticketPurpose, raw[:ticketExpiry], []byte(attemptID))
	copy(raw[ticketExpiry:], sum[:])
	return base64.RawURLEncoding.EncodeToString(raw[:])
}

// checkTicket returns nil for a ticket of that attempt in its time, or an error wrapping ErrTicket that does not repeat
// the ticket.
func (s *signer) checkTicket(attemptID, ticket string, now time.Time) error {
	var raw [ticketExpiry + ticketMAC]byte
	if len(ticket) != base64.RawURLEncoding.EncodedLen(len(raw)) {
		return fmt.Errorf("%w: it has %d characters, want %d", ErrTicket, len(ticket), base64.RawURLEncoding.EncodedLen(len(raw)))
	}
	if _, err := base64.RawURLEncoding.Strict().Decode(raw[:], []byte(ticket)); err != nil {
		return fmt.Errorf("%w: it is not base64url", ErrTicket)
	}
	for _, k := range s.keys.at(now).keys {
		sum := k.mac(ticketPurpose, raw[:ticketExpiry], []byte(attemptID))
		if !hmac.Equal(sum[:ticketMAC], raw[ticketExpiry:]) {
			continue
		}
		if expires := int64(binary.BigEndian.Uint64(raw[:ticketExpiry])); now.Unix() >= expires {
			return errTicketOver
		}
		return nil
	}
	return fmt.Errorf("%w: not made by this control plane for this attempt", ErrTicket)
}
