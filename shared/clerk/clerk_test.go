package clerk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/invoice"
	"github.com/errand-run/errand/shared/invoice/intake"
)

func TestWhatCannotSucceedFailsForGood(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.json")
	if err := os.WriteFile(broken, []byte(`{"vendors":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, r := context.Background(), new(agent.Run)
	for name, c := range map[string]struct {
		do              func() error
		vendors, orders string
		wantCode, want  string
	}{
		"a document that is none":     {func() error { _, err := extract(ctx, r, invoice.File{Name: "a.xml", Text: "<a/>"}); return err }, "", "", CodeDocument, "neither a UBL"},
		"a line without an amount":    {func() error { _, err := checkLine(ctx, r, intake.Line{Number: 3}); return err }, "", "", CodeLine, "line 3: net"},
		"vendors that cannot be read": {func() error { _, err := lookUpVendor(ctx, r, intake.Extract{}); return err }, broken, "", CodeMaster, EnvVendors},
		"vendors that are not there":  {func() error { _, err := lookUpOrder(ctx, r, intake.Extract{}); return err }, filepath.Join(dir, "none"), "", CodeMaster, EnvVendors},
		"orders that cannot be read":  {func() error { _, err := lookUpOrder(ctx, r, intake.Extract{}); return err }, "", broken, CodeMaster, EnvOrders},
		"an invoice of no run":        {func() error { _, err := file(ctx, r, fileInput{}); return err }, "", "", agent.CodeInputInvalid, "run:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvVendors, c.vendors)
			t.Setenv(EnvOrders, c.orders)
			err := c.do()
			var failed *agent.Error
			if !errors.As(err, &failed) || !failed.Final || failed.Code != c.wantCode || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v; want a final %s with %q", err, c.wantCode, c.want)
			}
		})
	}
}

// Master data is read when it is asked for: a vendor that is added is known to the next invoice.
func TestMasterDataMayChangeMeanwhile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vendors.json")
	t.Setenv(EnvVendors, file)
	for _, c := range []struct{ vendors, want string }{
		{`[]`, ""},
		{`[{"id":"V-9","name":"Nord","vat":"","accounts":[]}]`, "V-9"},
	} {
		if err := os.WriteFile(file, []byte(c.vendors), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := lookUpVendor(context.Background(), new(agent.Run), intake.Extract{Summary: invoice.Summary{ID: "1", Seller: "nord"}})
		if err != nil || got.Vendor != c.want {
			t.Errorf("with %s: %+v, error %v", c.vendors, got, err)
		}
	}
}
