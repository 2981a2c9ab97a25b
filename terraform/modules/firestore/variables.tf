variable "project" {
  type        = string
  description = "Id of the project."
}

variable "name" {
  type        = string
  description = "Id of the database."
}

variable "location" {
  type        = string
  description = "Region or multi-region of the database."
}

variable "protect" {
  type        = bool
  description = "Refuses to destroy the database."
}

variable "point_in_time_recovery" {
  type        = bool
  description = "Keeps seven days to read back."
}
