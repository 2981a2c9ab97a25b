package report

import "io"

// HTML writes the report as a page that stands alone.
func (r *Report) HTML(w io.Writer) error {
	_, err := io.WriteString(w, "<!doctype html>\n")
	return err
}
