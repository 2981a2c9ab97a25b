package clerk

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/invoice/intake"
)

func TestWhatCannotSucceedFailsForGood(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.json")
	if err := os.WriteFile(broken, []byte(`{"vendors":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		agent, input, vendors, orders string
		wantCode, want                string
	}{
		"an agent that there is not":  {"nobody", `{}`, "", "", agent.CodeInputInvalid, "ledger-post"},
		"another input":               {"line-check", `[]`, "", "", agent.CodeInputInvalid, "line-check"},
		"a document that is none":     {"invoice-extract", `{"name":"a.xml","text":"<a/>"}`, "", "", CodeDocument, "neither a UBL"},
		"a line without an amount":    {"line-check", `{"number":3}`, "", "", CodeLine, "line 3: net"},
		"vendors that cannot be read": {"vendor-lookup", `{}`, broken, "", CodeMaster, EnvVendors},
		"vendors that are not there":  {"order-lookup", `{}`, filepath.Join(dir, "none"), "", CodeMaster, EnvVendors},
		"orders that cannot be read":  {"order-lookup", `{}`, "", broken, CodeMaster, EnvOrders},
		"an invoice of no run":        {"invoice-file", `{"invoice":{}}`, "", "", agent.CodeInputInvalid, "run:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvVendors, c.vendors)
			t.Setenv(EnvOrders, c.orders)
			_, err := Work(context.Background(), &agent.Run{Agent: c.agent}, json.RawMessage(c.input))
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
		got, err := Work(context.Background(), &agent.Run{Agent: "vendor-lookup"}, json.RawMessage(`{"id":"1","seller":"nord"}`))
		if err != nil || got.(intake.VendorReport).Vendor != c.want {
			t.Errorf("with %s: %+v, error %v", c.vendors, got, err)
		}
	}
}
