"""The pages: an account and its job's history in; text, JSON, HTML or a trace out. Pure, standard library only, no arithmetic on clocks.

figures   which figures a source can carry
palette   one colour and one glyph per group of leaves, for every page
units     integer ns -> words
tracks    tiles as drawable pieces: unsaved training told apart, short ones merged, spans sorted into lanes
notes     what a reader must know to trust the numbers, and the next command to type
contract  `ett report JOB --json`
text      `ett report JOB`; its sections lie in `sections`, bars and tables in `bars`
startup   `ett report JOB --explain-startup`
html      `ett report JOB --html`; its tables lie in `htmlparts`
perfetto  `ett report JOB --perfetto`
live      `ett watch`
"""
