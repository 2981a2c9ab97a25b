package server

import "github.com/errand-run/errand/shared/control"

var _ Plane = (*control.Plane)(nil)
