/* A guard in C: the least that a process between a program and its command can do. */
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* makeGuard makes a guard, and returns the socket to it. For each text that is written there the
   guard starts the command, puts the text into *item, if there is one, waits until the command and
   all that it started are dead, and writes the wait status of the last. */
static int makeGuard(char **command, char **item) {
	int ends[2], status;
	char text[64];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) || (pid = fork()) < 0)
		return -1;
	if (pid) {
		close(ends[1]);
		return ends[0];
	}
	close(ends[0]);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	while (read(ends[1], text, sizeof text) > 0) {
		if (item)
			*item = text;
		if (posix_spawnp(&pid, command[0], NULL, NULL, command, environ))
			_exit(127);
		while (waitpid(-1, &status, 0) > 0)
			;
		if (write(ends[1], &status, sizeof status) != sizeof status)
			_exit(69);
	}
	_exit(0);
}
