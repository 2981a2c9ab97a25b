package pubsub

import (
	"strings"
	"testing"

	pb "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
)

func TestWhatIsBilled(t *testing.T) {
	small := &pb.PubsubMessage{Data: []byte("0123456789"), MessageId: "12", Attributes: map[string]string{"a": "bcd"}}
	large := &pb.PubsubMessage{Data: []byte(strings.Repeat("x", 5000)), MessageId: "12"}
	received := func(ms ...*pb.PubsubMessage) (all []*pb.ReceivedMessage) {
		for _, m := range ms {
			all = append(all, &pb.ReceivedMessage{Message: m})
		}
		return all
	}
	if n := volumeOf(small, small.GetMessageId()); n != 10+2+4+20 {
		t.Errorf("a message of 10 bytes, an attribute of 4 and an id of 2 counts as %d, want 36", n)
	}
	for sentence, c := range map[string]struct {
		messages []*pb.ReceivedMessage
		least    int
		want     Stats
	}{
		"nothing costs nothing":                                 {nil, leastVolume, Stats{}},
		"a small one counts as the least":                       {received(small), leastVolume, Stats{Delivered: 1, Bytes: 1000}},
		"small ones of a stream count as the least each":        {received(small, small), leastVolume, Stats{Delivered: 2, Bytes: 2000}},
		"small ones of one pull count as the least together":    {received(small, small), 0, Stats{Delivered: 2, Bytes: 1000}},
		"a large one counts as what it is, besides a small one": {received(small, large), leastVolume, Stats{Delivered: 2, Bytes: 6022}},
	} {
		var got counters
		if got.delivered(c.messages, c.least); got.n.Delivered != c.want.Delivered || got.n.Bytes != c.want.Bytes {
			t.Errorf("%s: got %+v, want %+v", sentence, got.n, c.want)
		}
	}
}
