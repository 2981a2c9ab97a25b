package examples

import (
	"os"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/arrivals"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
	"github.com/errand-run/errand/shared/manifest"
)

// side is what becomes of the month-end under some manifests, on the target that dev makes on two cores.
func side(t *testing.T, paths ...string) forecast.Side {
	t.Helper()
	set, err := manifest.Load(paths)
	if err != nil {
		t.Fatal(err)
	}
	target := &fleet.Target{Meta: fleet.Meta{Name: "local"}, Runtime: fleet.RuntimeLocal, Capacity: fleet.Capacity{Runs: 8}}
	target.SetDefaults()
	s := forecast.Side{Name: strings.Join(paths, ", "), Objects: []fleet.Object{target}}
	for _, o := range set.Objects {
		s.Objects = append(s.Objects, o.Object)
	}
	file, err := os.Open("invoices/forecast/month-end.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	come, err := arrivals.Read(file.Name(), file)
	if err != nil {
		t.Fatal(err)
	}
	s.Result, err = forecast.Run(s.Objects, come.Source(1), forecast.Options{Start: come.Start, Window: come.Window, Seed: 1, Workers: come.Workers})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The forecast of the guide: the archive's flood makes finance and sales wait, and a quota for it ends that.
func TestTheForecastSaysWhyFinanceWaited(t *testing.T) {
	c, err := forecast.Compare(side(t, "invoices"), side(t, "invoices", "invoices/forecast/bounded.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	said := make(map[string]string)
	for _, f := range c.Findings {
		said[f.Tenant] = f.Text
	}
	for _, tenant := range []string{"finance", "sales"} {
		for _, want := range []string{
			tenant + " waited p95 ", "under A", "for slots held by other tenants", "of that by archive)", "Under B it hardly waited",
			"What differs: quota.running of tenant archive is unset under A and 4 under B.",
		} {
			if !strings.Contains(said[tenant], want) {
				t.Errorf("it does not say %q:\n%s", want, said[tenant])
			}
		}
	}
}
