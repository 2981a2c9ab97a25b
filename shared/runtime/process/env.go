package process

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"
)

// envHost marks what a host started, for the ledger: see Host.
const envHost = "ERRAND_HOST"

// inherited is all that a program gets of its host's environment: a server's secrets stay with the server.
var inherited = []string{"PATH", "HOME", "LANG", "TMPDIR"}

// Environment is PATH, HOME, LANG and TMPDIR as they are here, then the given variables, later ones winning. Sorted.
func Environment(vars ...map[string]string) []string {
	all := make(map[string]string)
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok {
			all[name] = v
		}
	}
	for _, each := range vars {
		maps.Copy(all, each)
	}
	env := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env
}

// resolve finds the program's file as a shell in the program's own directory and environment would.
func resolve(spec Spec) (string, error) {
	if len(spec.Command) == 0 || spec.Command[0] == "" {
		return "", errors.New("no command is given")
	}
	if spec.Dir != "" {
		switch info, err := os.Stat(spec.Dir); {
		case err != nil:
			return "", fmt.Errorf("directory %s: %w", spec.Dir, reason(err))
		case !info.IsDir():
			return "", fmt.Errorf("directory %s: it is a file", spec.Dir)
		}
	}
	name := spec.Command[0]
	if strings.ContainsRune(name, filepath.Separator) {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(spec.Dir, name)
		}
		path, err := filepath.Abs(path)
		if err == nil {
			err = executable(path)
		}
		if err != nil {
			return "", fmt.Errorf("command %s in %s: %w", name, orHere(spec.Dir), err)
		}
		return path, nil
	}
	search := lookup(spec.Env, "PATH")
	for _, dir := range filepath.SplitList(search) {
		// A relative entry would make the program depend on the directory it runs in.
		if path := filepath.Join(dir, name); filepath.IsAbs(dir) && executable(path) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("command %s: not found in PATH (%s); install it, or give the program's path", name, clip(search))
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return reason(err)
	case info.IsDir():
		return errors.New("it is a directory")
	case info.Mode()&0o111 == 0:
		return errors.New("it is not executable; chmod +x it, or name its interpreter first")
	}
	return nil
}

// reason drops the operation and path that an error repeats.
func reason(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		if errors.Is(pathErr.Err, syscall.ENOENT) {
			return errors.New("no such file or directory")
		}
		return pathErr.Err
	}
	return err
}

func lookup(env []string, name string) string {
	value := ""
	for _, each := range env {
		if v, ok := strings.CutPrefix(each, name+"="); ok {
			value = v
		}
	}
	return value
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

func lastRune(s string) (rune, int) { return utf8.DecodeLastRuneInString(s) }
