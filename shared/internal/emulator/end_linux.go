package emulator

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel kill the child when the thread that starts it ends, however this process does.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
