"""The probe's own thread: takes records to the journal and looks after the helper."""
