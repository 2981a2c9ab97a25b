package deploy

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// image is what an OCI layout says of one image.
type image struct {
	User       string
	Entrypoint []string
	Env        []string
	layers     []string // files
}

// name of the command that it starts.
func (i *image) name() string {
	if len(i.Entrypoint) == 0 {
		return ""
	}
	return filepath.Base(i.Entrypoint[0])
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
}

// readLayout reads all images of an OCI layout in a folder.
func readLayout(folder string) ([]*image, error) {
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	if err := readJSON(filepath.Join(folder, "index.json"), &index); err != nil {
		return nil, err
	}
	var images []*image
	for _, m := range index.Manifests {
		var manifest struct {
			Config descriptor   `json:"config"`
			Layers []descriptor `json:"layers"`
		}
		if err := readJSON(blob(folder, m.Digest), &manifest); err != nil {
			return nil, err
		}
		var config struct {
			Config struct {
				User            string
				Entrypoint, Env []string
			} `json:"config"`
		}
		if err := readJSON(blob(folder, manifest.Config.Digest), &config); err != nil {
			return nil, err
		}
		i := &image{User: config.Config.User, Entrypoint: config.Config.Entrypoint, Env: config.Config.Env}
		for _, l := range manifest.Layers {
			i.layers = append(i.layers, blob(folder, l.Digest))
		}
		images = append(images, i)
	}
	return images, nil
}

func blob(folder, digest string) string {
	return filepath.Join(folder, "blobs", strings.Replace(digest, ":", string(filepath.Separator), 1))
}

func readJSON(file string, v any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// unpack writes the image's files under root, as a runtime would: nothing gets out of it.
func (i *image) unpack(root string) (err error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	for _, layer := range i.layers {
		if err := unpackLayer(dir, layer); err != nil {
			return fmt.Errorf("%s: %w", layer, err)
		}
	}
	return nil
}

func unpackLayer(dir *os.Root, layer string) error {
	file, err := os.Open(layer)
	if err != nil {
		return err
	}
	defer file.Close()
	packed, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	for r := tar.NewReader(packed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimLeft(filepath.Clean("/"+h.Name), "/")
		switch h.Typeflag {
		case tar.TypeDir:
			err = mkdirs(dir, name)
		case tar.TypeReg:
			err = errors.Join(mkdirs(dir, filepath.Dir(name)), copyInto(dir, name, r))
		case tar.TypeSymlink:
			err = dir.Symlink(h.Linkname, name)
		default:
			err = fmt.Errorf("%s: an entry of type %q", h.Name, h.Typeflag)
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
}

// mkdirs makes the folder and what it is in, readable by everybody.
func mkdirs(dir *os.Root, name string) error {
	if name == "." || name == "" {
		return nil
	}
	parts := strings.Split(name, "/")
	for n := range parts {
		if err := dir.Mkdir(strings.Join(parts[:n+1], "/"), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func copyInto(dir *os.Root, name string, r io.Reader) (err error) {
	f, err := dir.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, r)
	return err
}

// names of all images, sorted.
func names(images []*image) []string {
	var out []string
	for _, i := range images {
		out = append(out, i.name())
	}
	slices.Sort(out)
	return out
}
