package arch

// Module is the path of the module whose tree the rules are about.
const Module = "github.com/errand-run/errand"

// Limits of the house.
const (
	maxFileLines = 800
	maxMainLines = 80
)

// Package is what the house knows about one package under shared/.
type Package struct {
	Layer int

	// Beside are the packages of its own layer that it imports; everything else that it imports is in a lower layer.
	Beside []string

	// Suite marks what is for tests, such as a conformance suite: test files import it, and nothing else does but suites.
	Suite bool
}

// Layers above the ports have room for their neighbors; those of the pure core have none.
const (
	kernel  = 0 // what a run is, and what is declared
	policy  = 1 // decisions over values
	ports   = 2 // what the outside must be able to do
	drivers = 3 // what does it
	stages  = 4 // the control loop
	doors   = 5 // how one gets in

	pureUpTo = policy // these layers are functions of their arguments
)

// Rules is everything that Check asks of a tree.
type Rules struct {
	// Packages is the table of packages, by path below shared/. A package that is missing here is refused.
	Packages map[string]Package

	// Reach closes a package in: these, and what lies below them, are the only packages of the module that it
	// reaches, however many imports away. It holds in test files too, save for suites.
	Reach map[string][]string

	// Libraries says who may import what from outside the module, by path prefix. A library that is missing here is
	// refused. An empty list means test files and suites alone.
	Libraries map[string][]string

	// Pure is the part of the standard library that layers 0 and 1 may import.
	Pure []string

	// Impure are the names, by import path, that layers 0 and 1 leave alone in packages that they may import.
	Impure map[string][]string

	// Words must not occur in any file, and mean a machine rather than the product. By pattern, what it is.
	Words map[string]string
}

// House is the rules of this tree.
func House() Rules {
	return Rules{
		Packages: map[string]Package{
			"run":   {Layer: kernel},
			"fleet": {Layer: kernel},

			"admission": {Layer: policy},
			"queue":     {Layer: policy},
			"placement": {Layer: policy},
			// What decisions are measured with.
			"placement/crowd": {Layer: policy, Beside: []string{"placement", "queue"}},
			"retry":           {Layer: policy},
			"workflow":        {Layer: policy},

			// Plays the policies in simulated time: it imports no more than they do.
			"forecast": {Layer: ports},

			"store":   {Layer: ports},
			"bus":     {Layer: ports},
			"expr":    {Layer: ports},
			"runtime": {Layer: ports},
			// Below the drivers, whose tests start emulators; a cloud on one machine starts them too.
			"internal/emulator": {Layer: ports},
			"cloudbox":          {Layer: doors, Beside: []string{"api", "internal/emulator", "server", "twin"}},

			"trigger":             {Layer: drivers},
			"workflow/cel":        {Layer: drivers}, // its expressions
			"manifest":            {Layer: drivers, Beside: []string{"trigger", "workflow/cel"}},
			"identity":            {Layer: drivers},
			"store/internal/port": {Layer: drivers},
			"store/memory":        {Layer: drivers, Beside: []string{"store/internal/port"}},
			"store/sqlite":        {Layer: drivers, Beside: []string{"store/internal/port"}},
			"store/firestore":     {Layer: drivers, Beside: []string{"store/internal/port"}},
			"store/storetest":     {Layer: drivers, Suite: true},
			"bus/internal/port":   {Layer: drivers},
			"bus/local":           {Layer: drivers, Beside: []string{"bus/internal/port"}},
			"bus/pubsub":          {Layer: drivers, Beside: []string{"bus/internal/port"}},
			"bus/events":          {Layer: drivers},
			"bus/bustest":         {Layer: drivers, Suite: true},
			"runtime/process":     {Layer: drivers},
			"runtime/httpio":      {Layer: drivers},
			"runtime/stdio":       {Layer: drivers, Beside: []string{"runtime/process"}},
			"runtime/local":       {Layer: drivers, Beside: []string{"runtime/process", "runtime/httpio", "runtime/stdio"}},
			"runtime/cloudrun":    {Layer: drivers, Beside: []string{"identity", "runtime/httpio"}},
			"runtime/runtimetest": {Layer: drivers, Suite: true},

			// Cloud Run on one machine, for tests and demonstrations.
			"twin": {Layer: drivers, Beside: []string{"runtime/process"}},

			"control":  {Layer: stages},
			"arrivals": {Layer: stages}, // of a forecast, from manifests and stores

			"api":                 {Layer: doors},
			"agent":               {Layer: doors, Beside: []string{"api"}},
			"host":                {Layer: doors, Beside: []string{"agent", "api"}}, // of attempts of others, for workers
			"server/dashboard":    {Layer: doors, Beside: []string{"api"}},
			"server":              {Layer: doors, Beside: []string{"api", "server/dashboard"}},
			"server/oidc":         {Layer: doors, Beside: []string{"server"}},
			"config":              {Layer: doors, Beside: []string{"node", "server", "server/oidc"}},
			"node":                {Layer: doors, Beside: []string{"server", "version"}},
			"cli/internal/render": {Layer: doors},
			"cli/internal/inputs": {Layer: doors, Beside: []string{"api"}},
			"cli/internal/board":  {Layer: doors, Beside: []string{"cli/internal/render"}},
			"cli/internal/report": {Layer: doors, Beside: []string{"cli/internal/render"}},
			"cli/internal/bench":  {Layer: doors, Beside: []string{"agent", "api", "internal/seed", "node", "version"}},
			"cli": {Layer: doors, Beside: []string{
				"agent", "api", "cloudbox", "config", "host", "node", "version",
				"cli/internal/bench", "cli/internal/board", "cli/internal/inputs", "cli/internal/render", "cli/internal/report",
			}},

			// Logs and processes that tests watch, and the server as such a process.
			"outside": {Layer: ports, Suite: true},
			"devtest": {Layer: doors, Beside: []string{"api"}, Suite: true},

			// Stores to measure with, and tests of the whole.
			"internal/seed": {Layer: doors},
			"e2e":           {Layer: doors},
			"chaos":         {Layer: doors},
			"deploy":        {Layer: doors, Beside: []string{"config", "server/oidc"}}, // images, the build, the plan of Terraform
			"cost":          {Layer: doors},
			"sim":           {Layer: doors, Suite: true},

			// Proof of who sends, for whoever sends or receives.
			"signature": {Layer: drivers},

			// Leaves: they know nothing of the house, so it does not matter which layer they stand in.
			"version":         {Layer: doors},
			"invoice":         {Layer: doors},
			"invoice/book":    {Layer: doors},
			"invoice/desk":    {Layer: doors, Beside: []string{"invoice"}},
			"invoice/intake":  {Layer: doors, Beside: []string{"invoice"}},
			"invoice/journal": {Layer: doors},
			"invoice/tally":   {Layer: doors, Beside: []string{"invoice"}},
			"patterns/model":  {Layer: doors},
			"arch":            {Layer: doors},

			// The agents of the examples.
			"clerk":    {Layer: doors, Beside: []string{"agent", "invoice", "invoice/intake", "invoice/journal"}},
			"patterns": {Layer: doors, Beside: []string{"agent", "invoice/journal", "patterns/model"}},
		},
		Reach: map[string][]string{
			"run":   nil, // the kernel is the standard library and itself
			"fleet": nil,
			"queue": {"run"}, // it orders runs; what is declared comes as arguments
			// Simulated time is nobody's clock.
			"forecast": {"run", "fleet", "admission", "queue", "placement", "retry"},
			"api":      nil, // a client has no need of what serves it
			// An agent runs anywhere, and links none of the control plane.
			"agent":     {"api", "identity"},
			"identity":  nil,
			"invoice":   nil, // the worked example is an application, not a part of the product
			"version":   nil,
			"signature": nil,
			"arch":      nil,
		},
		Libraries: map[string][]string{
			"github.com/GoogleCloudPlatform/functions-framework-go": {"functions"},

			"cel.dev/cel-go":                             {"expr"},
			"github.com/coreos/go-oidc/v3":               {"server/oidc"},
			"github.com/cloudevents/sdk-go/v2":           {"bus/events"},
			"github.com/danielgtaylor/huma/v2":           {"server"},
			"github.com/go-chi/chi/v5":                   {"server"},
			"github.com/go-jose/go-jose/v4":              {"server/oidc"},
			"github.com/golang-jwt/jwt/v5":               {"control", "twin"},
			"github.com/prometheus/client_golang":        {"server", "node"},
			"github.com/santhosh-tekuri/jsonschema/v6":   {"control"},
			"github.com/sethvargo/go-envconfig":          {"config"},
			"github.com/shopspring/decimal":              {"invoice", "invoice/book", "invoice/desk", "invoice/intake", "invoice/tally"},
			"github.com/spf13/cobra":                     {"cli"},
			"go.yaml.in/yaml/v4":                         {"manifest", "deploy"}, // manifests, and what deploys
			"golang.org/x/sys/unix":                      {"runtime/process", "store/sqlite", "cli", "cli/internal/bench"},
			"golang.org/x/term":                          {"cli/internal/render"},
			"golang.org/x/text":                          {"control"}, // the language of schema errors
			"modernc.org/sqlite":                         {"store/sqlite"},
			"database/sql":                               {"store/sqlite"},
			"cloud.google.com/go/firestore":              {"store/firestore"},
			"cloud.google.com/go/iam":                    {"cloudbox", "twin"}, // its messages are in Cloud Run's services
			"cloud.google.com/go/longrunning":            {"twin"},             // so are these
			"google.golang.org/genproto":                 {"twin"},             // and these
			"golang.org/x/time/rate":                     {"cloudbox", "runtime/cloudrun", "twin"},
			"cloud.google.com/go/pubsub/v2":              {"bus/pubsub"},
			"cloud.google.com/go/run":                    {"cloudbox", "runtime/cloudrun", "twin"},
			"google.golang.org/api":                      {"bus/pubsub", "cloudbox", "runtime/cloudrun", "store/firestore", "twin"},
			"google.golang.org/grpc":                     {"bus/pubsub", "cloudbox", "runtime/cloudrun", "store/firestore", "twin"},
			"google.golang.org/protobuf":                 {"bus/pubsub", "cloudbox", "runtime/cloudrun", "store/firestore", "twin"},
			"github.com/google/go-cmp":                   nil,
			"github.com/google/uuid":                     nil,
			"github.com/rogpeppe/go-internal/testscript": nil,
			"go.uber.org/goleak":                         nil,
			"pgregory.net/rapid":                         nil,
			"testing":                                    nil,
			"net/http/httptest":                          nil,
		},
		Pure: []string{
			"bytes", "cmp", "container/heap", "crypto/sha256", "encoding/base32", "encoding/binary", "encoding/hex",
			"encoding/json", "errors", "fmt", "hash/fnv", "io", "iter", "maps", "math", "math/big", "math/bits", "net/url",
			"reflect", "slices", "sort", "strconv", "strings", "time", "unicode", "unicode/utf8",
		},
		Impure: map[string][]string{
			"time": {
				"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer",
				"Local", "LoadLocation", // the machine's zone, and files
			},
			"fmt": {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
			"io":  {"Pipe"},
		},
		Words: map[string]string{
			`(?:^|[^\w./-])/(?:work|farm|root)/`:    "a folder of one machine",
			`https?://(?:proxy|registry|deb|sum)\.`: "the address of a registry; clients know theirs",
		},
	}
}
