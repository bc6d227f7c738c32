// Members of the namespace that are not typed yet, by the script that sets them; written by `npm run declare`. To type
// one, declare it in nanscope.d.ts, or in a file of its own beside it, and run that again.

interface Nanscope {
}
