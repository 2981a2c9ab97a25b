package deploy

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// cloudBuild is the part of Cloud Build's configuration that ours may use, by the names of its documentation. A field
// that is missing here is refused.
type cloudBuild struct {
	Steps          []buildStep       `yaml:"steps"`
	Images         []string          `yaml:"images"`
	Substitutions  map[string]string `yaml:"substitutions"`
	Options        buildOptions      `yaml:"options"`
	Timeout        string            `yaml:"timeout"`
	Tags           []string          `yaml:"tags"`
	ServiceAccount string            `yaml:"serviceAccount"`
	LogsBucket     string            `yaml:"logsBucket"`
}

type buildStep struct {
	ID           string        `yaml:"id"`
	Name         string        `yaml:"name"`
	Entrypoint   string        `yaml:"entrypoint"`
	Args         []string      `yaml:"args"`
	Script       string        `yaml:"script"`
	Env          []string      `yaml:"env"`
	SecretEnv    []string      `yaml:"secretEnv"`
	Dir          string        `yaml:"dir"`
	Volumes      []buildVolume `yaml:"volumes"`
	WaitFor      []string      `yaml:"waitFor"`
	Timeout      string        `yaml:"timeout"`
	AllowFailure bool          `yaml:"allowFailure"`
}

type buildVolume struct {
	Name string `yaml:"name"`
	Path string `yaml:"path"`
}

type buildOptions struct {
	MachineType          string   `yaml:"machineType"`
	Logging              string   `yaml:"logging"`
	SubstitutionOption   string   `yaml:"substitutionOption"`
	DynamicSubstitutions bool     `yaml:"dynamicSubstitutions"`
	DiskSizeGB           int      `yaml:"diskSizeGb"`
	Env                  []string `yaml:"env"`
}

// builtIn are the substitutions that Cloud Build gives to every build, whatever started it.
var builtIn = []string{"PROJECT_ID", "PROJECT_NUMBER", "BUILD_ID", "LOCATION"}

// reference is a substitution in a text; two dollar signs are one that is none.
var reference = regexp.MustCompile(`\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*)|\$)`)

func readBuild(t *testing.T) *cloudBuild {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), "cloudbuild.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	b := new(cloudBuild)
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(b); err != nil {
		t.Fatalf("cloudbuild.yaml: %v", err)
	}
	return b
}

// texts of the step in which Cloud Build substitutes.
func (s *buildStep) texts() []string {
	return slices.Concat([]string{s.Name, s.Entrypoint, s.Dir}, s.Args, s.Env)
}

func TestTheBuildGoesFromVerifiedSourceToATriedDeployment(t *testing.T) {
	b := readBuild(t)
	var order []string
	mounted := map[string]int{}
	for i := range b.Steps {
		s := &b.Steps[i]
		// A step waits for named steps that stand above it: without waitFor it would wait for all of them, unseen.
		if s.ID == "" || slices.Contains(order, s.ID) {
			t.Errorf("step %d has the id %q: want one of its own", i, s.ID)
		}
		if len(s.WaitFor) == 0 {
			t.Errorf("step %s does not say what it waits for", s.ID)
		}
		for _, before := range s.WaitFor {
			if before != "-" && !slices.Contains(order, before) {
				t.Errorf("step %s waits for %q, which is no step above it", s.ID, before)
			}
		}
		if s.Script != "" && (s.Entrypoint != "" || len(s.Args) > 0) {
			t.Errorf("step %s has a script and a command", s.ID)
		}
		if name, tag, _ := strings.Cut(s.Name, ":"); name == "" || tag == "" {
			t.Errorf("step %s runs in %q: want an image with a tag", s.ID, s.Name)
		}
		for _, v := range s.Volumes {
			mounted[v.Name]++
			if !strings.HasPrefix(v.Path, "/") || strings.HasPrefix(v.Path, "/workspace") {
				t.Errorf("step %s mounts %s at %q: want an absolute path outside of /workspace", s.ID, v.Name, v.Path)
			}
		}
		for _, e := range s.Env {
			if !strings.Contains(e, "=") {
				t.Errorf("step %s: the variable %q has no value", s.ID, e)
			}
		}
		order = append(order, s.ID)
	}
	if want := []string{"verify", "images", "push", "deploy", "smoke"}; !slices.Equal(order, want) {
		t.Errorf("steps are %q, want %q", order, want)
	}
	for name, n := range mounted {
		if n < 2 {
			t.Errorf("volume %s is in one step alone, which Cloud Build refuses", name)
		}
	}
	if b.Options.Logging == "" {
		t.Error("a build that runs as an account of its own must say where its log goes")
	}
}

func TestTheBuildUsesWhatItDeclares(t *testing.T) {
	b := readBuild(t)
	used := map[string]bool{}
	for i := range b.Steps {
		for _, text := range b.Steps[i].texts() {
			for _, m := range reference.FindAllStringSubmatch(text, -1) {
				name := m[1] + m[2]
				if name == "" {
					continue
				}
				used[name] = true
				_, declared := b.Substitutions[name]
				if !declared && !slices.Contains(builtIn, name) {
					t.Errorf("step %s uses %s, which is neither declared nor Cloud Build's own", b.Steps[i].ID, name)
				}
			}
		}
	}
	for name := range b.Substitutions {
		if !used[name] {
			t.Errorf("substitution %s is declared and not used", name)
		}
		if !regexp.MustCompile(`^_[A-Z0-9_]+$`).MatchString(name) {
			t.Errorf("substitution %s: Cloud Build wants an underscore, then capitals", name)
		}
	}
	// What Terraform gives to a build is declared, or Cloud Build refuses it.
	terraform, err := os.ReadFile(filepath.Join(root(t), "terraform", "build.tf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)\b(_[A-Z]+)\s*=`).FindAllStringSubmatch(string(terraform), -1) {
		if _, ok := b.Substitutions[m[1]]; !ok {
			t.Errorf("terraform/build.tf gives %s; there are %q", m[1], slices.Sorted(maps.Keys(b.Substitutions)))
		}
	}
}

func TestTheBuildCallsWhatIsThere(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	b := readBuild(t)
	for i := range b.Steps {
		s := &b.Steps[i]
		command := strings.Join(append([]string{s.Entrypoint}, s.Args...), " ")
		for _, m := range regexp.MustCompile(`\bmake ((?:[a-z]+ ?)+)`).FindAllStringSubmatch(command, -1) {
			for _, target := range strings.Fields(m[1]) {
				if !bytes.Contains(makefile, []byte("\n"+target+":")) {
					t.Errorf("step %s makes %s, which is no target", s.ID, target)
				}
			}
		}
		for _, file := range regexp.MustCompile(`\.ci/[a-z]+`).FindAllString(command, -1) {
			if info, err := os.Stat(filepath.Join(root(t), file)); err != nil || info.Mode()&0o111 == 0 {
				t.Errorf("step %s runs %s: %v; want a program", s.ID, file, err)
			}
		}
	}
}
