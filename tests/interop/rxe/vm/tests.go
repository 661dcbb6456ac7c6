package vm

import "log"

// Tests runs tests, and ends the guests that they share, for TestMain; it returns the exit
// code. If tests have failed and a guest's network card hangs, which is QEMU's failure and
// not that of what is tested, all of them run once more, with new guests.
func Tests(run func() int, hung func() bool, end func() error) (code int) {
	for again := true; ; again = false {
		code = run()
		h := hung()
		if err := end(); err != nil {
			log.Print(err)
			code = max(code, 1)
		}
		if code == 0 || !h || !again {
			return code
		}
		log.Print("a guest's network card, which QEMU emulates, has hung: all tests once more, with new guests")
	}
}
