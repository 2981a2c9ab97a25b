package emulator

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel kill the child when the thread that starts it ends, however this process does. An
// interrupt that is typed is for this process alone.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
