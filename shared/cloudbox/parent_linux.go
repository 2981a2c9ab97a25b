package cloudbox

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel end the process when the box's dies. An interrupt that is typed is for the box alone, which
// ends its processes in their order.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
