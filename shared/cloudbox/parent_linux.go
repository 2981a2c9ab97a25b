package cloudbox

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel end the process when the box's dies.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
