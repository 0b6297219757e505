package guestwire

import "strconv"

// signals are Linux's names and numbers (signal(7)); they are the same on
// amd64 and arm64.
var signals = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8,
	"SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12, "SIGPIPE": 13, "SIGALRM": 14, "SIGTERM": 15,
	"SIGSTKFLT": 16, "SIGCHLD": 17, "SIGCONT": 18, "SIGSTOP": 19, "SIGTSTP": 20, "SIGTTIN": 21, "SIGTTOU": 22,
	"SIGURG": 23, "SIGXCPU": 24, "SIGXFSZ": 25, "SIGVTALRM": 26, "SIGPROF": 27, "SIGWINCH": 28, "SIGIO": 29,
	"SIGPWR": 30, "SIGSYS": 31,
}

var signalNames = func() map[int]string {
	names := make(map[int]string, len(signals))
	for name, number := range signals {
		names[number] = name
	}
	return names
}()

// SignalNumber is the number of a named signal.
func SignalNumber(name string) (number int, ok bool) {
	number, ok = signals[name]
	return number, ok
}

// SignalName names a signal; real-time signals are SIGRT0 .. SIGRT32.
func SignalName(number int) string {
	if name, ok := signalNames[number]; ok {
		return name
	}
	if number >= 32 && number <= 64 {
		return realTime(number - 32)
	}
	return ""
}

// KnownSignal reports whether SignalName could have made the name.
func KnownSignal(name string) bool {
	if _, ok := signals[name]; ok {
		return true
	}
	for n := range 33 {
		if realTime(n) == name {
			return true
		}
	}
	return false
}

func realTime(n int) string {
	return "SIGRT" + strconv.Itoa(n)
}
