package firestore

import (
	"testing"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/shared/store"
)

func FuzzDocumentIsDecodedOrRefused(f *testing.F) {
	w := put(store.KindRun, "a", 0, []byte("body"))
	for _, h := range []head{{token: "t", first: "t"}, {token: "t", prior: "p", first: "f", parts: 3}} {
		b, err := proto.Marshal(&pb.Document{Name: "n", Fields: encode(&w.Doc, h)})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := &pb.Document{}
		if proto.Unmarshal(b, d) != nil {
			return
		}
		for kind := range collections {
			got, err := decode(kind, d)
			if err != nil {
				continue
			}
			if got.doc.ID == "" || got.doc.Version < 1 || got.head.parts < 0 || got.head.parts > maxParts || got.size < 0 || got.size > store.MaxBody {
				t.Errorf("accepted as %s: %+v", kind, got)
			}
			if x := got.doc.Index; (x != nil) != (kind == store.KindRun) || x != nil && !x.Part.Valid() {
				t.Errorf("accepted as %s with index %+v", kind, x)
			}
		}
	})
}
